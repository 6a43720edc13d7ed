/* allreduce_mpi.c - the peer: MPI_Allreduce (float32 sum, in place) by size, measured as bench_allreduce
 * measures.
 *
 *     mpicc -O2 -o allreduce_mpi allreduce_mpi.c
 *     mpirun -n 2 ./allreduce_mpi ITERATIONSxBYTES..
 *
 * Every iteration starts at a barrier and takes as long as its slowest rank; before it every rank has written
 * to every page of its vector. One JSON object a size. Not a program of the build: bench/run.py compiles it
 * where mpicc is. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Seconds of every iteration, the slowest rank's; valid at rank 0. */
static void time_size(float *x, size_t count, int iterations, double *slowest)
{
    enum { WARMUP = 3 };
    for (int i = -WARMUP; i < iterations; i++) {
        for (size_t at = 0; at < count; at += 1024)
            x[at] = 1;
        MPI_Barrier(MPI_COMM_WORLD);
        const double begin = MPI_Wtime();
        MPI_Allreduce(MPI_IN_PLACE, x, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        const double took = MPI_Wtime() - begin;
        MPI_Reduce(&took, &slowest[i < 0 ? 0 : i], 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    }
    qsort(slowest, (size_t)iterations, sizeof *slowest, compare);
}

int main(int argc, char **argv)
{
    char version[MPI_MAX_LIBRARY_VERSION_STRING];
    int rank, ranks, used;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Get_library_version(version, &used);
    version[strcspn(version, ",\n")] = 0;
    for (int i = 1; i < argc; i++) {
        int iterations = 0;
        size_t bytes = 0;
        if (sscanf(argv[i], "%dx%zu", &iterations, &bytes) != 2 || iterations < 1 || bytes < sizeof(float)) {
            fputs("usage: allreduce_mpi ITERATIONSxBYTES..\n", stderr);
            MPI_Abort(MPI_COMM_WORLD, 2);
        }
        const size_t count = bytes / sizeof(float);
        double *slowest = calloc((size_t)iterations, sizeof *slowest);
        float *x = malloc(bytes);
        if (!x || !slowest) MPI_Abort(MPI_COMM_WORLD, 1);
        for (size_t at = 0; at < count; at++)
            x[at] = 1;
        time_size(x, count, iterations, slowest);
        const double median = slowest[iterations / 2], p99 = slowest[(iterations * 99 + 99) / 100 - 1];
        if (rank == 0)
            printf("{\"bench\":\"allreduce\",\"peer\":\"%s\",\"ranks\":%d,\"bytes\":%zu,\"median_us\":%.2f,"
                   "\"p99_us\":%.2f,\"algbw_gb_s\":%.6g}\n",
                   version, ranks, bytes, median * 1e6, p99 * 1e6, (double)bytes / median / 1e9);
        free(x);
        free(slowest);
    }
    MPI_Finalize();
    return 0;
}
