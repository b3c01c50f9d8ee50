"""Pages: self-contained HTML files about runs and doubtful labels, the figures on them, and
`Prediction`: what lines, JSON and pages tell of one image.
"""
