"""One request from arrival to its last token, over as many workers as that takes."""

from .answer import Answer
from .job import Deadlines, Delivery, Job
from .relay import Relay

__all__ = ["Answer", "Deadlines", "Delivery", "Job", "Relay"]
