"""A real Slurm cluster on one machine: hosts are namespaces, munge, sshd, Slurm and SkyPilot are the real ones."""
