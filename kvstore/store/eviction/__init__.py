"""Which entry goes first. One file a policy; `EvictionPolicy` is what they promise."""

from .links import OUT, Links
from .policy import EvictionPolicy
from .slru import SlruPolicy

__all__ = ["EvictionPolicy", "Links", "OUT", "SlruPolicy"]
