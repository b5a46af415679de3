"""Pictures of the real program: real ranks, the real command in a real terminal, drawn as SVG."""
