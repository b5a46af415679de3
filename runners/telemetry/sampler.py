"""placeholder"""

NO_DRIVER = 3
