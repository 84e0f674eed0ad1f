"""Online projection memory: the state of a frame that follows a signal exactly, and reconstructs its past.

Read `online`, then `flows`; the layers of `nn` use the same operators with a learned clock.
"""

from wavessm.memory.flows import DenseFlow, ModalFlow, make_flow
from wavessm.memory.online import OnlineMemory, recurrence

__all__ = ["DenseFlow", "ModalFlow", "OnlineMemory", "make_flow", "recurrence"]
