/* Registers resources and ends as it is told. Arguments: a directory, and what to do.
 *
 *   kill STEP   rank 0 makes a segment, a set of semaphores, a file, a directory and a child, prints their numbers, and is killed at a
 *               step; rank 1, if there is one, waits for that, looks whether its own are still there, and removes them
 *   codes       prints what the functions return
 *   late        does not end a release in time, unless it is killed before
 *   finalize, abort   has handlers, and ends so
 */
#include <pmi_ext.h>
#include <fcntl.h>
#include <mqueue.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static int rank, size, step, failed;
static char file[4096], tree[4096], inner[4200], other[4096];

static void die_at(int now) {
    if (step == now && rank == 0) {
        fflush(stdout);
        kill(getpid(), SIGKILL);
    }
}

static void check(int code) {
    failed += code != PMI_SUCCESS;
}

static char *name(const char *kind, int id) {
    static char text[64];
    snprintf(text, sizeof text, "%s:%d", kind, id);
    return text;
}

static char *path(const char *kind, const char *path) {
    static char text[5000];
    snprintf(text, sizeof text, "%s:%s", kind, path);
    return text;
}

static void make(const char *path) {
    close(open(path, O_CREAT | O_WRONLY, 0600));
}

static void hold(char *name) {
    check(PMI_Resource_register(name, NULL, NULL, NULL, NULL));
}

/* Objects of POSIX, named after this process, and a queue of System V; they are left to the launcher. */
static void others(void) {
    char word[32], text[64];
    snprintf(word, sizeof word, "/lattice-test-%d", getpid());
    snprintf(text, sizeof text, "pshm:%s", word);
    check(PMI_Resource_intend(text));
    close(shm_open(word, O_CREAT | O_RDWR, 0600));
    hold(text);
    snprintf(text, sizeof text, "psem:%s", word);
    sem_open(word, O_CREAT, 0600, 1);
    hold(text);
    snprintf(text, sizeof text, "mq:%s", word);
    failed += mq_open(word, O_CREAT | O_RDWR, 0600, NULL) == (mqd_t)-1;
    hold(text);
    int messages = msgget(IPC_PRIVATE, IPC_CREAT | 0600);
    hold(name("msg", messages));
    printf("%d: msg %d posix %d\n", rank, messages, getpid());
}

static void steps(void) {
    check(PMI_Resource_intend("shm:"));
    check(PMI_Resource_intend(path("file", file)));
    check(PMI_Resource_intend(path("dir", tree)));
    die_at(0);
    int segment = shmget(IPC_PRIVATE, 4096, IPC_CREAT | 0600);
    make(file);
    mkdir(tree, 0700);
    make(inner);
    pid_t child = fork();
    if (child == 0)
        for (;;)
            pause();
    printf("%d: shm %d pid %d\n", rank, segment, child);
    die_at(1);
    int semaphores = semget(IPC_PRIVATE, 2, IPC_CREAT | 0600);
    printf("%d: sem %d\n", rank, semaphores);
    hold(name("shm", segment));
    hold(name("sem", semaphores));
    hold(path("file", file));
    hold(path("dir", tree));
    hold(name("pid", child));
    semctl(semaphores, 0, SETVAL, 1);
    others();
    PMI_Barrier();
    fflush(stdout);
    die_at(2);
    while (rank > 0 && access(other, F_OK) == 0)
        usleep(10000);
    struct shmid_ds status;
    if (shmctl(segment, IPC_STAT, &status) || access(inner, F_OK) || kill(child, 0))
        printf("those of rank %d are gone\n", rank);
    check(PMI_Resource_release_begin(name("shm", segment), 10));
    die_at(3);
    shmctl(segment, IPC_RMID, NULL);
    die_at(4);
    check(PMI_Resource_release_end(name("shm", segment)));
    check(PMI_Resource_release_end(path("file", file)));
    die_at(5);
    printf("%d: %d failed\n", rank, failed);
}

static void codes(void) {
    printf("%d %d %d %d, %d %d %d\n", PMI_Resource_intend("shm:"),
           PMI_Resource_register(path("file", file), NULL, NULL, NULL, NULL), PMI_Resource_release_begin("sem:1", 1),
           PMI_Resource_release_end("sem:1"), PMI_Resource_intend("myipc"), PMI_Resource_intend(NULL),
           PMI_Resource_release_begin("sem:1", -1));
}

static void late(void) {
    make(file);
    hold(path("file", file));
    check(PMI_Resource_release_begin(path("file", file), 1));
    sleep(3);
    unlink(file);
    check(PMI_Resource_release_end(path("file", file)));
    printf("%d failed\n", failed);
}

static void *say(void *word) {
    printf("%s\n", (char *)word);
    fflush(stdout);
    return NULL;
}

int main(int argc, char **argv) {
    int spawned;
    if (argc < 3 || PMI_Init(&spawned) != PMI_SUCCESS)
        return 2;
    PMI_Get_rank(&rank);
    PMI_Get_size(&size);
    snprintf(file, sizeof file, "%s/file %d", argv[1], rank);
    snprintf(other, sizeof other, "%s/file 0", argv[1]);
    snprintf(tree, sizeof tree, "%s/tree-%d", argv[1], rank);
    snprintf(inner, sizeof inner, "%s/inner", tree);
    if (!strcmp(argv[2], "kill")) {
        step = atoi(argv[3]);
        PMI_Barrier();
        steps();
    } else if (!strcmp(argv[2], "codes")) {
        codes();
    } else if (!strcmp(argv[2], "late")) {
        late();
    } else {
        make(file);
        snprintf(other, sizeof other, "%s/second", argv[1]);
        make(other);
        check(PMI_Resource_register(path("file", file), say, "first at exit", say, "first at abort"));
        check(PMI_Resource_register(path("file", other), say, "second at exit", NULL, NULL));
        check(PMI_Resource_register(path("dir", argv[1]), say, "never", say, "never"));
        check(PMI_Resource_register("pid:1", say, "never", say, "never") == PMI_SUCCESS);
        check(PMI_Resource_release_end(path("dir", argv[1])));
        printf("%d failed\n", failed);
        if (!strcmp(argv[2], "abort"))
            PMI_Abort(7, "on purpose");
    }
    return PMI_Finalize() != PMI_SUCCESS;
}
