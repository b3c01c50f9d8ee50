"""From files of pictures to pixels in memory: a folder's list, its labels, the decoder, and the
file of pixels.
"""
