/* half_lines COUNT: prints numbered lines in two writes each, as fast as it can; no MPI. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv) {
    const char *rank = getenv("LATTICE_RANK");
    int count = argc > 1 ? atoi(argv[1]) : 0;
    for (int i = 0; i < count; i++) {
        char line[200];
        int length = snprintf(line, sizeof line, "from %s line %d ", rank, i);
        /* Lines of many lengths. */
        int filler = i * 7 % 100;
        memset(line + length, 'x', filler);
        length += filler;
        line[length++] = '\n';
        if (write(1, line, length / 2) < 0 || write(1, line + length / 2, length - length / 2) < 0)
            return 1;
    }
    return 0;
}
