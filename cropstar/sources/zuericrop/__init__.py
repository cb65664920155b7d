"""ZueriCrop: small image series of the cantons Zurich and Thurgau, with crops on three levels."""

from cropstar.sources.zuericrop.files import looks_like_zuericrop
from cropstar.sources.zuericrop.options import ZueriCropOptions
from cropstar.sources.zuericrop.scene import ZueriCropScene, open_zuericrop

__all__ = ["ZueriCropOptions", "ZueriCropScene", "looks_like_zuericrop", "open_zuericrop"]
