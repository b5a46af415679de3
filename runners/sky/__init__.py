"""Everything that imports SkyPilot. A process of its own executes it, in the Python that has SkyPilot: see serve.py."""
