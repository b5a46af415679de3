"""The read-only cockpit in a browser: the gate, the server on the loopback interface, and the process of each page."""
