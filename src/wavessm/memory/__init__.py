"""Online projection memory: the state of a frame that follows a signal exactly, and reconstructs its past.

Read `online`, then `flows`; the layers of `nn` use the same operators with a learned clock.
"""

from wavessm.memory.flows import DenseFlow as DenseFlow
from wavessm.memory.flows import ModalFlow as ModalFlow
from wavessm.memory.flows import make_flow as make_flow
from wavessm.memory.online import OnlineMemory as OnlineMemory
from wavessm.memory.online import recurrence as recurrence
