"""From what is asked for to a started run: on this machine, on hosts that the user names, on nodes from SkyPilot."""
