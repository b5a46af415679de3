"""What only a machine with GPUs can prove: see run.sh."""
