/* The place where programs that were written for Slurm look for it. */
#include "../pmi.h"
