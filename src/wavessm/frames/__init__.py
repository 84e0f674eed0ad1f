"""Frames: N waveforms on [0, 1]. Read `quadrature`, `frame`, `tiling`, `family` in this order; then `operators`."""

from wavessm.frames.family import BASES as BASES
from wavessm.frames.family import PAPER_FAMILIES as PAPER_FAMILIES
from wavessm.frames.family import RESERVED as RESERVED
from wavessm.frames.family import WAVELETS as WAVELETS
from wavessm.frames.family import Basis as Basis
from wavessm.frames.family import default_quadrature as default_quadrature
from wavessm.frames.family import dpss as dpss
from wavessm.frames.family import families as families
from wavessm.frames.family import gauss as gauss
from wavessm.frames.family import get_family as get_family
from wavessm.frames.family import is_family as is_family
from wavessm.frames.family import make_frame as make_frame
from wavessm.frames.family import register_family as register_family
from wavessm.frames.frame import Frame as Frame
from wavessm.frames.quadrature import Array as Array
from wavessm.frames.quadrature import Quadrature as Quadrature
from wavessm.frames.quadrature import frozen as frozen
from wavessm.frames.quadrature import lobatto as lobatto
from wavessm.frames.tiling import PAPER_ALPHA as PAPER_ALPHA
from wavessm.frames.tiling import Tiling as Tiling
from wavessm.frames.tiling import Wavelet as Wavelet
from wavessm.frames.tiling import allocate as allocate
from wavessm.frames.tiling import tile as tile
