"""Every test here gets a user of its own, and fails when a process of that user is left."""

from .runs import world as world
