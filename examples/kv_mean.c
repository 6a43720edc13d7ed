/* kv_mean.c - two programs, each with its own data, fit one line y = slope x + offset through psd.
 *
 *     entrain psd --world-size=2 --strategy=ps-sync &
 *     ./kv_mean 0 & ./kv_mean 1                 (RANK [SERVER [STRATEGY]])
 *
 * Rank 0 has points of the left half of the line only, rank 1 of the right half. The store averages their gradients
 * and steps, so both end with the same line. With ps-async in place of ps-sync neither waits for the other. */
#include <stdio.h>
#include <stdlib.h>

#include "entrain/client.h"

enum { RANKS = 2, POINTS = 32, STEPS = 200 };

typedef struct point {
    float x, y;
} point;

/* y = 3 x + 1 and some noise, for x in [-1, 0) on rank 0 and [0, 1) on rank 1. */
static void measure(int rank, point *points)
{
    unsigned noise = 12345u + (unsigned)rank;
    for (int i = 0; i < POINTS; i++) {
        noise = noise * 1664525u + 1013904223u;
        points[i].x = (float)(rank - 1) + (float)i / POINTS;
        points[i].y = 3 * points[i].x + 1 + 0.1f * ((float)(noise >> 8) / (1 << 24) - 0.5f);
    }
}

/* Overwrites grad with the gradient of the mean of (y' - y)^2 / 2 at the line (slope, offset). */
static void gradient(const point *points, const float *line, float *grad)
{
    grad[0] = grad[1] = 0;
    for (int i = 0; i < POINTS; i++) {
        float error = line[0] * points[i].x + line[1] - points[i].y;
        grad[0] += error * points[i].x / POINTS;
        grad[1] += error / POINTS;
    }
}

int main(int argc, char **argv)
{
    const en_client_tensor line = {.size = sizeof line, .name = "line", .shape = {2}}; /* slope, offset */
    const en_client_options options = {.abi = EN_CLIENT_ABI,
                                       .size = sizeof options,
                                       .server = argc > 2 ? argv[2] : "tcp://127.0.0.1:5555",
                                       .strategy = argc > 3 ? argv[3] : "ps-sync",
                                       .rank = argc > 1 ? atoi(argv[1]) : 0,
                                       .world_size = RANKS,
                                       .runtime_dir = getenv("XDG_RUNTIME_DIR"),
                                       .tensors = &line,
                                       .ntensors = 1,
                                       .lr = 0.3,
                                       .momentum = 0.5};
    point points[POINTS];
    en_client *client;
    en_status status = en_client_open(&options, &client);
    if (status != EN_OK) return 1; /* the library has logged why */
    measure(options.rank, points);
    const float *weights = en_client_param(client, 0);
    for (int step = 0; step < STEPS && status == EN_OK; step++) {
        gradient(points, weights, en_client_grad(client, 0));
        status = en_client_push_pull(client, 0, POINTS);
        if (status == EN_OK) status = en_client_wait(client, 0);
    }
    if (status == EN_OK) status = en_client_finish(client);
    printf("rank %d: y = %.3f x + %.3f after %llu steps of the store: %s\n", options.rank, weights[0],
           weights[1], (unsigned long long)en_client_version(client, 0), en_status_str(status));
    en_client_close(client);
    return status != EN_OK;
}
