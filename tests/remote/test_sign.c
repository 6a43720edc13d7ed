/* test_sign.c - signatures: those of the services' own libraries for the same requests
 * (tools/make_signature_goldens.py). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "remote/sign.h"

/* Promise: Requests to object storage are signed as the services' own libraries sign them, and go to the
 * hosts and paths that those name. */

static json_t *goldens;
static eni_signed is_signed;

static int load_goldens(void **state)
{
    (void)state;
    json_error_t error;
    goldens = json_load_file(EN_SOURCE_DIR "/tests/goldens/signatures.json", 0, &error);
    if (goldens == NULL) print_error("%s\n", error.text);
    return goldens == NULL;
}

static int drop_goldens(void **state)
{
    (void)state;
    json_decref(goldens);
    return 0;
}

static const char *text_of(const json_t *object, const char *key)
{
    return json_string_value(json_object_get(object, key));
}

static void copy(char *into, size_t bytes, const char *text)
{
    assert_true(text == NULL || strlen(text) < bytes);
    strcpy(into, text == NULL ? "" : text);
}

static eni_keys make_keys(const char *token)
{
    eni_keys keys = {.from = "a test"};
    copy(keys.id, sizeof keys.id, text_of(goldens, "id"));
    copy(keys.secret, sizeof keys.secret, text_of(goldens, "secret"));
    copy(keys.token, sizeof keys.token, token);
    return keys;
}

static void find_place(const json_t *golden, eni_remote_url *url, eni_remote_endpoint *place)
{
    assert_int_equal(eni_remote_url_parse("--data", text_of(golden, "url"), url), EN_OK);
    assert_int_equal(eni_remote_endpoint_find(url, "--data-endpoint", text_of(golden, "endpoint"),
                                              text_of(golden, "region"), place),
                     EN_OK);
}

/* As remote_call.c and upload.c send it: "/BUCKET/KEY" or "/KEY", and the query by name. */
static eni_remote_request make_request(const json_t *golden, const eni_remote_url *url,
                                       const eni_remote_endpoint *place)
{
    eni_remote_request request = {.method = text_of(golden, "method")};
    const char *name;
    json_t *value, *query = json_object_get(golden, "query");
    snprintf(request.path, sizeof request.path, "/%s%s", place->has_bucket_in_path ? url->bucket : "",
             place->has_bucket_in_path ? "/" : "");
    assert_true(eni_url_add(request.path, sizeof request.path, text_of(golden, "key"), true));
    json_object_foreach(query, name, value)
    {
        char *at = request.query + strlen(request.query);
        const bool is_bare = url->kind == ENI_OSS && json_string_length(value) == 0;
        snprintf(at, 64, "%s%s%s", at == request.query ? "" : "&", name, is_bare ? "" : "=");
        assert_true(eni_url_add(request.query, sizeof request.query, json_string_value(value), false));
    }
    copy(request.body_sha256, sizeof request.body_sha256, text_of(golden, "body"));
    return request;
}

static void signatures_are_the_libraries(void **state)
{
    (void)state;
    size_t i;
    json_t *golden, *requests = json_object_get(goldens, "requests");
    assert_true(json_array_size(requests) >= 83);
    json_array_foreach(requests, i, golden)
    {
        eni_remote_url url;
        eni_remote_endpoint place;
        const json_t *headers = json_object_get(golden, "headers");
        find_place(golden, &url, &place);
        const eni_remote_request request = make_request(golden, &url, &place);
        const eni_keys keys = make_keys(text_of(golden, "token"));
        assert_string_equal(place.host, text_of(golden, "host"));
        assert_string_equal(request.path, text_of(golden, "path"));
        assert_string_equal(request.query, text_of(golden, "signed_query"));
        const time_t time = (time_t)json_integer_value(json_object_get(golden, "time"));
        assert_int_equal(eni_sign(&url, &place, &keys, &request, time, &is_signed), EN_OK);
        const int first = url.kind == ENI_S3; /* after Host, as it is signed */
        char host[ENI_REMOTE_HOST + 8];
        snprintf(host, sizeof host, "host: %s", place.host);
        if (first == 1) assert_string_equal(is_signed.header[0], host);
        assert_int_equal(is_signed.n, first + (int)json_array_size(headers));
        for (int k = first; k < is_signed.n; k++) {
            const char *expected = json_string_value(json_array_get(headers, (size_t)(k - first)));
            if (strcmp(is_signed.header[k], expected) != 0)
                fail_msg("request %zu, %s %s, %s: \"%s\", expected \"%s\"", i, text_of(golden, "url"),
                         request.method, request.path, is_signed.header[k], expected);
        }
    }
}

/* Each part of a request is signed: a change of any one changes the signature. */
static void every_part_is_signed(void **state)
{
    (void)state;
    size_t i;
    json_t *golden;
    json_array_foreach(json_object_get(goldens, "requests"), i, golden)
    {
        char last[8][ENI_SIGNED_TEXT];
        eni_remote_url url;
        eni_remote_endpoint place;
        const time_t time = (time_t)json_integer_value(json_object_get(golden, "time"));
        if (text_of(golden, "token") == NULL || text_of(golden, "body") == NULL) continue;
        find_place(golden, &url, &place);
        for (int part = 0; part < 8; part++) {
            eni_remote_request request = make_request(golden, &url, &place);
            eni_keys keys = make_keys(text_of(golden, "token"));
            eni_remote_endpoint other = place;
            if (part == 1) request.method = "GET";
            if (part == 2) request.path[1]++;
            if (part == 3) strcpy(request.query, "acl=1");
            if (part == 4) keys.secret[0]++;
            if (part == 5) keys.token[0]++;
            if (part == 6) other.region[0]++;
            assert_int_equal(eni_sign(&url, &other, &keys, &request, time + (part == 7), &is_signed), EN_OK);
            copy(last[part], sizeof last[part], strstr(is_signed.header[is_signed.n - 1], "Signature="));
            for (int k = 0; k < part; k++)
                assert_string_not_equal(last[k], last[part]);
        }
    }
}

/* The body and the host, which S3 signs. */
static void the_body_and_the_host_of_s3(void **state)
{
    (void)state;
    char last[3][ENI_SIGNED_TEXT];
    eni_remote_url url;
    eni_remote_endpoint place;
    const json_t *golden = json_array_get(json_object_get(goldens, "requests"), 0);
    find_place(golden, &url, &place);
    for (int part = 0; part < 3; part++) {
        eni_remote_request request = make_request(golden, &url, &place);
        const eni_keys keys = make_keys(NULL);
        if (part == 1) memset(request.body_sha256, 'a', ENI_DIGEST_HEX - 1);
        if (part == 2) place.host[0]++;
        assert_int_equal(eni_sign(&url, &place, &keys, &request, 0, &is_signed), EN_OK);
        copy(last[part], sizeof last[part], strstr(is_signed.header[is_signed.n - 1], "Signature="));
        for (int k = 0; k < part; k++)
            assert_string_not_equal(last[k], last[part]);
    }
}

/* The longest keys of eni_keys: the headers are complete. */
static void the_longest_keys(void **state)
{
    (void)state;
    const json_t *golden;
    size_t i;
    json_array_foreach(json_object_get(goldens, "requests"), i, golden)
    {
        eni_remote_url url;
        eni_remote_endpoint place;
        eni_keys keys = {.from = "a test"};
        find_place(golden, &url, &place);
        memset(place.region, 'r', sizeof place.region - 1);
        memset(place.host, 'h', sizeof place.host - 1);
        memset(keys.id, 'i', sizeof keys.id - 1);
        memset(keys.secret, 's', sizeof keys.secret - 1);
        memset(keys.token, 't', sizeof keys.token - 1);
        const eni_remote_request request = make_request(golden, &url, &place);
        assert_int_equal(eni_sign(&url, &place, &keys, &request, 0, &is_signed), EN_OK);
        const char *token = is_signed.header[is_signed.n - 2],
                   *authorization = is_signed.header[is_signed.n - 1];
        assert_string_equal(strstr(token, ": ") + 2, keys.token);
        const char *signature = strstr(authorization, "Signature=");
        assert_non_null(signature);
        assert_int_equal(strlen(signature), strlen("Signature=") + ENI_DIGEST_HEX - 1);
        assert_non_null(strstr(authorization, keys.id));
    }
}

/* No headers of an earlier request. */
static void a_second_request_has_headers_of_its_own(void **state)
{
    (void)state;
    eni_remote_url url;
    eni_remote_endpoint place;
    const json_t *golden = json_array_get(json_object_get(goldens, "requests"), 0);
    find_place(golden, &url, &place);
    const eni_remote_request request = make_request(golden, &url, &place);
    eni_keys keys = make_keys("a-token");
    assert_int_equal(eni_sign(&url, &place, &keys, &request, 0, &is_signed), EN_OK);
    assert_int_equal(is_signed.n, 5);
    keys.token[0] = '\0';
    assert_int_equal(eni_sign(&url, &place, &keys, &request, 0, &is_signed), EN_OK);
    assert_int_equal(is_signed.n, 4);
    for (size_t at = 0; at + 7 < sizeof is_signed; at++)
        assert_memory_not_equal((char *)&is_signed + at, "a-token", 7);
    for (int i = 0; i < is_signed.n; i++)
        assert_null(strstr(is_signed.header[i], keys.secret));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(signatures_are_the_libraries), cmocka_unit_test(every_part_is_signed),
        cmocka_unit_test(the_body_and_the_host_of_s3), cmocka_unit_test(the_longest_keys),
        cmocka_unit_test(a_second_request_has_headers_of_its_own)};
    return cmocka_run_group_tests(tests, load_goldens, drop_goldens);
}
