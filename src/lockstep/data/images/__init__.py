"""Images of any number: in a cache on disk that all processes share, or decoded by threads ahead of need."""

from lockstep.data.images.base import Images as Images
from lockstep.data.images.base import Source as Source
from lockstep.data.images.choose import open_images as open_images
from lockstep.data.images.decoded import DecodedImages as DecodedImages
from lockstep.data.images.mapped import MappedImages as MappedImages
