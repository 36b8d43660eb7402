"""What `--print-sbatch` and `--print-k8s` print: files from which a scheduler starts a job."""
