"""All modules that import SkyPilot. They run in a separate process, with SkyPilot's Python: see serve.py."""
