/* rank_line.c - a program of your own as the ranks of a run: fits y = 3 x + 2, under any strategy.
 *
 *     cc rank_line.c -lentrain -o rank_line
 *     ./rank_line strategy=ring world-size=2 rank=0 & ./rank_line strategy=ring world-size=2 rank=1
 *
 * With ps-sync, ps-async or ssp:bound=2 also `entrain psd --strategy=.. --world-size=2` and server=tcp://127.0.0.1:5555.
 * Or let a launcher number the ranks: torchrun --no_python --nproc_per_node=2 ./rank_line strategy=ring */
#include <entrain/rank.h>
#include <stdio.h>

static float x_of(uint32_t sample)
{
    return (float)(sample % 100) / 50 - 1;
}

static en_status mean_square(void *user, const float *const *weights, en_rank_score *score_out)
{
    double sum = 0;
    (void)user;
    for (uint32_t i = 0; i < 100; i++) {
        const double wrong = weights[0][0] * x_of(i) + weights[1][0] - (3 * x_of(i) + 2);
        sum += wrong * wrong;
    }
    score_out->loss = sum / 100;
    return EN_OK;
}

int main(int argc, char **argv)
{
    const en_rank_tensor line[2] = {{.size = sizeof line[0], .name = "slope"},
                                    {.size = sizeof line[0], .name = "offset"}};
    const en_rank_options options = {.abi = EN_RANK_ABI,
                                     .size = sizeof options,
                                     .model = "line",
                                     .train_samples = 1000,
                                     .flags = EN_RANK_ENVIRONMENT,
                                     .ntensors = 2,
                                     .tensors = line,
                                     .evaluate = mean_square};
    en_rank *rank;
    en_rank_batch batch;
    en_status st = en_rank_open(&options, (const char *const *)argv + 1, (size_t)argc - 1, &rank);
    if (st != EN_OK) return 2;
    const float *slope = en_rank_weights(rank, 0), *offset = en_rank_weights(rank, 1);
    while ((st = en_rank_next(rank, &batch)) == EN_OK && (st = en_rank_begin(rank, batch.count)) == EN_OK) {
        double loss = 0, by_slope = 0, by_offset = 0;
        for (uint64_t i = 0; i < batch.count; i++) {
            const double x = x_of(batch.samples[i]), wrong = *slope * x + *offset - (3 * x + 2);
            loss += wrong * wrong / (double)batch.count;
            by_slope += 2 * wrong * x / (double)batch.count;
            by_offset += 2 * wrong / (double)batch.count;
        }
        *en_rank_gradient(rank, 1) = (float)by_offset;
        en_rank_ready(rank, 1);
        *en_rank_gradient(rank, 0) = (float)by_slope;
        en_rank_ready(rank, 0);
        const en_rank_score score = {.size = sizeof score, .loss = loss};
        if ((st = en_rank_finish(rank, &score)) != EN_OK) break;
    }
    if (st == EN_ESTOP && (st = en_rank_end(rank)) == EN_OK) printf("y = %.4f x + %.4f\n", *slope, *offset);
    en_rank_close(rank);
    return st == EN_OK ? 0 : 1;
}
