"""The output of `--print-sbatch` and `--print-k8s`: files with which a scheduler starts a job."""
