"""Jobs that distui did not start: found by their ranks' environment, watched, never touched."""
