/* pmi2_spawn_environment NAME...: a job of one rank spawns three ranks of itself, which print their variables of these names. */
#include <slurm/pmi2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void print_variables(char **names) {
    char line[4096] = "";
    for (; *names; names++) {
        const char *value = getenv(*names);
        size_t at = strlen(line);
        snprintf(line + at, sizeof line - at, "%s%s", at ? " " : "", value ? value : "none");
    }
    puts(line);
}

int main(int argc, char **argv) {
    int spawned, size, rank, appnum;
    if (PMI2_Init(&spawned, &size, &rank, &appnum) != PMI2_SUCCESS)
        return 2;
    if (spawned) {
        print_variables(argv + 1);
        PMI2_KVS_Fence();
    } else {
        const char *commands[] = {argv[0]};
        const char **arguments[] = {(const char **)argv + 1};
        int counts[] = {argc - 1}, ranks[] = {3}, no_infos[] = {0}, errors[3] = {0};
        const struct MPID_Info *none[] = {NULL};
        char job[256] = "";
        int code = PMI2_Job_Spawn(1, commands, counts, arguments, ranks, no_infos, none, 0, NULL, job, sizeof job, errors);
        puts(code == PMI2_SUCCESS ? "spawned" : "not spawned");
    }
    PMI2_Finalize();
    return 0;
}
