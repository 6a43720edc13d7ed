/* make_study.c - writes a synthetic comparison and its report, to look at the page without a training run:
 *     make_study DIR [one|six|claims] (default: the demo's three arms; one: one seed; six: six arms; claims:
 *     seven seeds in even and three in slow) */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "report/report.h"
#include "tests/report/fixture.h"

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "use: %s DIR [one|six|claims]\n", argv[0]);
        return 2;
    }
    fixture spec = fixture_demo();
    if (argc > 2 && strcmp(argv[2], "one") == 0) spec.nseeds[0] = 1;
    if (argc > 2 && strcmp(argv[2], "six") == 0) {
        const fixture_arm more[] = {
            {"ssp:bound=2", "ssp", NULL, 0.01, 64, {13010, 7400}, 0.8, 1, 0, {0.9, 1.1}},
            {"ssp:bound=8", "ssp", NULL, 0.005, 64, {13050, 8600}, 0.74, 1, 0, {1, 1}},
            {"localsgd:h=8", "localsgd", "direct", 0.02, 128, {15900, 5300}, 0.795, 0, 0, {0, 0}}};
        memcpy(&spec.arms[3], more, sizeof more);
        spec.narms = 6;
    }
    if (argc > 2 && strcmp(argv[2], "plan") == 0) spec.nseeds[0] = 7, spec.nseeds[1] = 3;
    mkdir(argv[1], 0777);
    fixture_write(argv[1], &spec);
    return eni_report((const char *const[]){argv[1]}, 1, argv[1], (eni_target){0}, stdout, 0) == 0 ? 0 : 1;
}
