/* dataset_make.h - the three ways a set comes to be; private to data/. */
#ifndef DATA_DATASET_MAKE_H
#define DATA_DATASET_MAKE_H

#include "data/dataset.h"

/* Fills shape, classes and both splits of a zeroed set from train-images-idx3-ubyte[.gz] and its three
 * siblings in `folder`. The counts are those of the files; `remedy` is told when one is absent. Errors as
 * eni_dataset_open; on failure the caller closes what is there. */
en_status eni_dataset_read_folder(const char *folder, const char *remedy, eni_dataset *set);

/* How many training samples it has, by the head of one file. */
en_status eni_dataset_folder_size(const char *folder, const char *remedy, uint64_t *size_out);

/* Fills a zeroed set with made-up samples of the wanted shape, the same for the same seed on every machine:
 * integers and exact float operations only. Labels and targets can be learnt from the samples. Those that are
 * held out are the last of ENI_TRAIN; what lies before them and is beyond the limit is not made. */
en_status eni_dataset_make(const eni_data_options *options, eni_dataset *set);
uint64_t eni_dataset_made_size(const eni_data_options *options); /* training samples before the limit */

/* Fills a zeroed set with what eni_dataset_lend put behind `fd` and maps it, so that its samples are read-only. Not
 * logged: EN_EPROTO for anything else, EN_ENOMEM; then the caller closes what is there. */
en_status eni_dataset_map(int fd, eni_dataset *set);

#endif
