"""The command line. Standard output carries what was asked for, standard error everything else."""
