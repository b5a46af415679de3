"""The product from its command line, as a user has it: real processes, real sockets, real files."""
