"""The UCR and UEA archives of series to be classified: NAME_TRAIN and NAME_TEST, as .tsv or .ts."""

from cropstar.sources.ucr.files import looks_like_ucr
from cropstar.sources.ucr.scene import UcrScene, open_ucr

__all__ = ["UcrScene", "looks_like_ucr", "open_ucr"]
