/* checks.h - what the texts of some keys must look like; private to config/. Each returns NULL if the text is
 * fine, else what should be given. */
#ifndef CONFIG_CHECKS_H
#define CONFIG_CHECKS_H

const char *eni_check_strategy(const char *text);   /* NAME or PATH, with or without :KEY=VALUE,.. */
const char *eni_check_name(const char *text);       /* a name without options */
const char *eni_check_device(const char *text);     /* auto, ref, cpu, cuda, cuda:I */
const char *eni_check_endpoint(const char *text);   /* tcp://HOST:PORT */
const char *eni_check_rendezvous(const char *text); /* the same, or env:// */
const char *eni_check_straggler(const char *text);  /* RANK:FACTOR */
const char *eni_check_net(const char *text);        /* rate:..,delay:.. */
const char *eni_check_count(const char *text);      /* a whole number from 1 to 1024 */
const char *eni_check_seed(const char *text);       /* a whole number >= 0 */
const char *eni_check_setting(const char *text);    /* even, slow */
const char *eni_check_primary(const char *text);    /* SETTING:ARM:ARM */

#endif
