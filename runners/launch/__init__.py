"""From a request to a started run: on this machine, on named hosts, on nodes from SkyPilot."""
