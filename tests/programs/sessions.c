/* MPI is started and ended twice in one process, through sessions: sessions DIRECTORY, which is empty.

   MPICH 5.0.2 now and then waits for ever when a rank starts it again while another still takes down the memory they shared, under
   Hydra as well. So ranks wait, without MPI, until all of them have ended it. */
#include <mpi.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

static int sum_of_ones(void) {
    MPI_Session session;
    MPI_Group group;
    MPI_Comm comm;
    int one = 1, sum;
    MPI_Session_init(MPI_INFO_NULL, MPI_ERRORS_ARE_FATAL, &session);
    MPI_Group_from_session_pset(session, "mpi://WORLD", &group);
    MPI_Comm_create_from_group(group, "again", MPI_INFO_NULL, MPI_ERRORS_ARE_FATAL, &comm);
    MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, comm);
    MPI_Comm_free(&comm);
    MPI_Group_free(&group);
    MPI_Session_finalize(&session);
    return sum;
}

static int files_in(const char *directory) {
    DIR *entries = opendir(directory);
    int files = 0;
    for (struct dirent *entry; entries && (entry = readdir(entries));)
        files += entry->d_name[0] != '.';
    if (entries)
        closedir(entries);
    return files;
}

int main(int argc, char **argv) {
    char file[4096];
    int first = sum_of_ones(), second;
    snprintf(file, sizeof file, "%s/%d", argc > 1 ? argv[1] : "", (int)getpid());
    int made = open(file, O_CREAT | O_WRONLY, 0600);
    if (made < 0)
        return 1;
    close(made);
    while (files_in(argv[1]) < first)
        usleep(1000);
    second = sum_of_ones();
    printf("%d then %d ranks\n", first, second);
    return 0;
}
