"""Online projection memory: the state of a frame that follows a signal, exactly, and gives its past back."""

from wavessm.memory.flows import DenseFlow, ModalFlow, make_flow
from wavessm.memory.online import OnlineMemory, recurrence

__all__ = ["DenseFlow", "ModalFlow", "OnlineMemory", "make_flow", "recurrence"]
