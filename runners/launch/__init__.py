"""Convert a request to a started run: on this machine, on named hosts, or on nodes from SkyPilot."""
