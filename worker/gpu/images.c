/* images.c - see images.h. */
#include "worker/gpu/images.h"

#include <stddef.h>
#include <string.h>

#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "worker/gpu/gpus.h"

enum { CHUNK_BYTES = 4 << 20, SHARE = 4 };

static uint64_t image_bytes(const eni_dataset *d)
{
    return (uint64_t)d->height * (uint64_t)d->width * (uint64_t)d->channels;
}

/* Why the loader makes them; NULL: the GPU can. */
static const char *obstacle(const eni_worker *w)
{
    if (w->device.ops->gpu->size <= offsetof(en_gpu, free_bytes))
        return "the device library cannot make images";
    if (w->config->resize > 0) return "--resize scales images on the host";
    return w->dataset->classes > 0 ? NULL : "the samples are floats";
}

static en_status refuse(const char *why)
{
    return eni_fail(EN_EINVAL, "gpu", "--data-on-device=on keeps stored images on the GPU, but %s: omit it",
                    why);
}

/* auto: with room for whatever else the ranks of this GPU, and other users, still need. */
static en_status fits(const eni_worker *w, bool *fits_out)
{
    const eni_gpus *gpus = w->gpu.gpus;
    const uint64_t bytes = w->dataset->split[ENI_TRAIN].count * image_bytes(w->dataset);
    uint64_t free_bytes, sharing = 0;
    char why[128];
    EN_TRY(w->device.ops->gpu->free_bytes(w->device.ctx, &free_bytes));
    for (int r = 0; r < w->rank.world.nranks; r++)
        sharing += strcmp(gpus->of_rank[r].uuid, gpus->facts.uuid) == 0;
    const bool is_asked = w->config->data_on_device == ENI_ON_DEVICE_ON;
    *fits_out = bytes <= (is_asked ? free_bytes : free_bytes / SHARE / sharing);
    if (!is_asked || *fits_out) return EN_OK;
    snprintf(why, sizeof why, "the set takes %.1f MB and %.1f MB are free", (double)bytes * 1e-6,
             (double)free_bytes * 1e-6);
    return refuse(why);
}

/* Files may be mapped record by record, so images are gathered first. */
static en_status copy_images(eni_worker *w, uint8_t *there, uint8_t *here)
{
    const uint64_t bytes = image_bytes(w->dataset), count = w->dataset->split[ENI_TRAIN].count;
    const uint64_t most = bytes < CHUNK_BYTES ? CHUNK_BYTES / bytes : 1;
    for (uint64_t first = 0, n; first < count; first += n) {
        n = most < count - first ? most : count - first;
        for (uint64_t i = 0; i < n; i++)
            memcpy(here + i * bytes, eni_dataset_image(w->dataset, ENI_TRAIN, first + i), bytes);
        EN_TRY(w->device.ops->copy(w->device.ctx, there + first * bytes, here, n * bytes, EN_COPY_IN));
        EN_TRY(eni_rank_alive(&w->rank));
    }
    return EN_OK;
}

static en_status keep_set(eni_worker *w)
{
    const uint64_t bytes = image_bytes(w->dataset), count = w->dataset->split[ENI_TRAIN].count;
    uint8_t *there;
    EN_TRY(w->device.ops->alloc(w->device.ctx, count * bytes, (void **)&there));
    w->gpu.pixels.images = there;
    w->gpu.pixels.image_bytes = bytes;
    uint8_t *here = eni_alloc(bytes > CHUNK_BYTES ? bytes : CHUNK_BYTES);
    if (here == NULL) return EN_ENOMEM;
    const en_status st = copy_images(w, there, here);
    eni_free(here);
    return st;
}

en_status eni_images_open(eni_worker *w)
{
    const eni_pixels *pixels = &w->dataset->pixels;
    const char *why = obstacle(w);
    bool is_kept = false;
    if (why != NULL) return w->config->data_on_device == ENI_ON_DEVICE_ON ? refuse(why) : EN_OK;
    if (w->config->data_on_device != ENI_ON_DEVICE_OFF) EN_TRY(fits(w, &is_kept));
    w->gpu.form = is_kept ? ENI_FORM_CUTS : ENI_FORM_BYTES;
    eni_pixels_describe_to_gpu(pixels, &w->gpu.pixels);
    float *table;
    EN_TRY(w->device.ops->alloc(w->device.ctx, sizeof pixels->table, (void **)&table));
    w->gpu.pixels.table = table;
    EN_TRY(w->device.ops->copy(w->device.ctx, table, pixels->table, sizeof pixels->table, EN_COPY_IN));
    if (is_kept) EN_TRY(keep_set(w));
    return w->device.ops->sync(w->device.ctx); /* PREFETCH does not wait for COMPUTE, which copies */
}

void eni_images_close(eni_worker *w)
{
    w->device.ops->free(w->device.ctx, (void *)(uintptr_t)w->gpu.pixels.images);
    w->device.ops->free(w->device.ctx, (void *)(uintptr_t)w->gpu.pixels.table);
}

const char *eni_images_form(const eni_worker *w)
{
    static const char *const names[] = {
        [ENI_FORM_FLOATS] = "floats", [ENI_FORM_CUTS] = "on the device", [ENI_FORM_BYTES] = "bytes"};
    return names[w->gpu.form];
}
