/* What coupled.c does, by names alone and over PMI-2: the port is the name of the copy. */
#include <slurm/pmi2.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void wait_for(const char *gate) {
    while (getenv(gate) && access(getenv(gate), F_OK))
        usleep(10000);
}

static void make(const char *file) {
    if (getenv(file))
        fclose(fopen(getenv(file), "w"));
}

int main(void) {
    int spawned, size, rank, appnum, looks = 0;
    char port[1024] = "";
    const char *own = getenv("COPY");
    if (PMI2_Init(&spawned, &size, &rank, &appnum) != PMI2_SUCCESS)
        return 2;
    if (rank == 0) {
        wait_for("SERVER_GATE");
        if (PMI2_Nameserv_publish("a bay", NULL, own) != PMI2_SUCCESS)
            printf("%s: the name is refused\n", own);
        make("PUBLISHED");
    } else {
        wait_for("CLIENT_GATE");
        while (PMI2_Nameserv_lookup("a bay", NULL, port, sizeof port) != PMI2_SUCCESS) {
            if (++looks == 20)
                make("LOOKED");
            usleep(10000);
        }
        printf("the server of %s has the client of %s\n", port, own);
    }
    PMI2_KVS_Fence();
    PMI2_Finalize();
    return 0;
}
