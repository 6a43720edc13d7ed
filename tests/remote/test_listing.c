/* test_listing.c - a service's answers in XML: pages of a list, and errors, as S3 and OSS write them; and
 * malformed ones. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/options.h"
#include "remote/listing.h"

#define HEAD         "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
#define LIST(inside) HEAD "<ListBucketResult>" inside "</ListBucketResult>"
#define OBJECT(key, etag, size)                                                                              \
    "<Contents><Key>" key "</Key><ETag>" etag "</ETag><Size>" size "</Size></Contents>"
#define TEN "abcdefghij"

static eni_listing listing;
static char why[256];

static int drop_listing(void **state)
{
    (void)state;
    eni_listing_fini(&listing);
    return 0;
}

static en_status add(int kind, const char *xml)
{
    why[0] = '\0';
    return eni_listing_add(&listing, kind, "", xml, strlen(xml), why, sizeof why);
}

static void expect_object(size_t i, const char *key, const char *etag, uint64_t size)
{
    assert_true(i < listing.n);
    assert_string_equal(listing.object[i].key, key);
    assert_string_equal(listing.object[i].etag, etag);
    assert_int_equal(listing.object[i].size, size);
}

static void expect_refused(const char *xml, const char *clause)
{
    if (add(ENI_S3, xml) != EN_EFORMAT) fail_msg("%.300s is taken", xml);
    if (strstr(why, clause) == NULL) fail_msg("%.300s: \"%s\" lacks \"%s\"", xml, why, clause);
    assert_true(eni_is_text(why));
    eni_listing_fini(&listing);
}

/* ---- pages ---- */

/* From "ListObjectsV2", Amazon S3 API Reference, with more keys. */
static void pages_of_s3(void **state)
{
    (void)state;
    assert_int_equal(
        add(ENI_S3, HEAD
            "<ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">\n  <Name>bucket</Name>\n"
            "  <Prefix/>\n  <KeyCount>2</KeyCount>\n  <MaxKeys>2</MaxKeys>\n"
            "  <EncodingType>url</EncodingType>\n  <IsTruncated>true</IsTruncated>\n"
            "  <NextContinuationToken>1ueGcxLPRx1Tr/XYExHnhbYLgveDs2J+wm36Hy4vbOwM=</NextContinuationToken>\n"
            "  <Contents>\n    <Key>my+image%2B1.jpg</Key>\n    "
            "<LastModified>2009-10-12T17:50:30.000Z</LastModified>\n"
            "    <ETag>&quot;fba9dede5f27731c9771645a39863328&quot;</ETag>\n    <Size>434234</Size>\n"
            "    <StorageClass>STANDARD</StorageClass>\n    <Owner><ID>8a6925ce4a7f21c3</ID></Owner>\n  "
            "</Contents>\n"
            "  <Contents><Key>%E6%95%B0/</Key><ETag>&quot;d41d8-2&quot;</ETag><Size>0</Size></Contents>\n"
            "  <CommonPrefixes><Prefix>photos/</Prefix></CommonPrefixes>\n</ListBucketResult>\n"),
        EN_OK);
    assert_int_equal(listing.n, 2);
    expect_object(0, "my image+1.jpg", "\"fba9dede5f27731c9771645a39863328\"", 434234);
    expect_object(1, "\xe6\x95\xb0/", "\"d41d8-2\"", 0);
    assert_true(listing.is_truncated);
    assert_string_equal(listing.token, "1ueGcxLPRx1Tr/XYExHnhbYLgveDs2J+wm36Hy4vbOwM="); /* as it stands */
    assert_int_equal(
        add(ENI_S3, LIST("<IsTruncated>false</IsTruncated>" OBJECT("a%2Bb", "\"e\"", "1125899906842624"))),
        EN_OK);
    assert_int_equal(listing.n, 3);
    expect_object(0, "my image+1.jpg", "\"fba9dede5f27731c9771645a39863328\"",
                  434234);                              /* not decoded twice */
    expect_object(2, "a%2Bb", "\"e\"", ENI_OBJECT_MAX); /* this page does not give an encoding */
    assert_false(listing.is_truncated);
    assert_string_equal(listing.token, "");
}

/* From "ListObjectsV2 (GetBucketV2)", OSS: the token has the encoding of the keys. */
static void pages_of_oss(void **state)
{
    (void)state;
    assert_int_equal(
        add(ENI_OSS,
            HEAD "<ListBucketResult>\n<Name>examplebucket</Name>\n<Prefix>a%2F</Prefix>\n"
                 "<MaxKeys>1000</MaxKeys><Delimiter></Delimiter>\n"
                 "<Contents><Key>a%2Fb%20c</Key><LastModified>2020-05-18T05:45:43.000Z</LastModified>"
                 "<ETag>\"35A27C2B9EAEEB6F48FD7FB5861D\"</ETag><Type>Normal</Type><Size>25</Size>"
                 "<StorageClass>STANDARD</StorageClass><Owner><ID>1</ID><DisplayName>1</DisplayName></Owner>"
                 "</Contents>\n<EncodingType>url</EncodingType><IsTruncated>true</IsTruncated>"
                 "<NextContinuationToken>CgJi%2Bw%3D%3D</NextContinuationToken><KeyCount>1</KeyCount>"
                 "</ListBucketResult>"),
        EN_OK);
    assert_int_equal(listing.n, 1);
    expect_object(0, "a/b c", "\"35A27C2B9EAEEB6F48FD7FB5861D\"", 25); /* the encoding follows */
    assert_string_equal(listing.token, "CgJi+w==");
    assert_int_equal(add(ENI_OSS, LIST("")), EN_OK);
    assert_int_equal(listing.n, 1);
}

static void nothing_is_lost_between_pieces(void **state)
{
    (void)state;
    assert_int_equal(
        add(ENI_S3,
            LIST("<Key>no</Key><Size>x</Size><Other><Contents>" OBJECT(
                "no", "no",
                "no") "</Contents></Other>"
                      "<Contents><Owner><Key>no</Key><Size>no</Size></Owner><Key>a<![CDATA[<b>]]>&amp;&#99;"
                      "<!-- no --></Key><Size>1</Size><ETag>e</ETag></Contents>")),
        EN_OK);
    assert_int_equal(listing.n, 1);
    expect_object(0, "a<b>&c", "\"e\"", 1);
}

/* Ceph lists them bare, NetApp and proxies mark them as weak. */
static void one_etag_in_many_forms(void **state)
{
    static const char *const forms[] = {"d41d8-2", "\"d41d8-2\"", "'d41d8-2'", "W/\"d41d8-2\"", "W/d41d8-2"};
    char etag[ENI_ETAG];
    (void)state;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        assert_true(eni_etag_set(etag, forms[i], strlen(forms[i])));
        assert_string_equal(etag, "\"d41d8-2\"");
    }
    assert_false(eni_etag_set(etag, "W/\"\"", 4) || eni_etag_set(etag, "\"a b\"", 5));
    assert_string_equal(etag, "");
}

/* Of an object, and of a folder alone, which a message shows without the prefix. */
static void a_key_without_the_prefix(void **state)
{
    static const char *const pages[] = {LIST(OBJECT("data/a", "e", "1") OBJECT("b", "e", "1")),
                                        LIST("<CommonPrefixes><Prefix>d/</Prefix></CommonPrefixes>")};
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(
            eni_listing_add(&listing, ENI_S3, "data/", pages[i], strlen(pages[i]), why, sizeof why),
            EN_EFORMAT);
        assert_non_null(strstr(why, "prefix"));
        eni_listing_fini(&listing);
    }
    assert_int_equal(eni_listing_add(&listing, ENI_S3, "d", pages[1], strlen(pages[1]), why, sizeof why),
                     EN_OK);
}

static void a_key_of_1024_bytes_and_of_one_more(void **state)
{
    (void)state;
    char xml[4200] = LIST("<EncodingType>url</EncodingType><Contents><Size>1</Size><ETag>e</ETag><Key>");
    char *at = strstr(xml, "</List");
    for (int i = 0; i < 1024; i++)
        *at++ = 'k';
    strcpy(at, "</Key></Contents></ListBucketResult>");
    assert_int_equal(add(ENI_S3, xml), EN_OK);
    assert_int_equal(strlen(listing.object[0].key), 1024);
    eni_listing_fini(&listing);
    strcpy(at, "k</Key></Contents></ListBucketResult>");
    expect_refused(xml, "a key has over 1,024 bytes");
}

/* All of it as %XX is three times as long, which is no reason to refuse it. */
static void a_long_key_that_is_encoded(void **state)
{
    (void)state;
    static char xml[8000] =
        LIST("<EncodingType>url</EncodingType><Contents><Size>1</Size><ETag>e</ETag><Key>");
    char *at = strstr(xml, "</List");
    for (int i = 0; i < 1024; i++, at += 3)
        memcpy(at, "%C3", 3);
    strcpy(at, "</Key></Contents></ListBucketResult>");
    if (add(ENI_S3, xml) != EN_OK) fail_msg("%s", why);
    assert_int_equal(strlen(listing.object[0].key), 1024);
    eni_listing_fini(&listing);
    strcpy(at, "%C3</Key></Contents></ListBucketResult>");
    expect_refused(xml, "longer text");
}

/* ---- refusals ---- */

static void bad_pages(void **state)
{
    (void)state;
    static const char *const bad[][2] = {
        {"", ""},
        {"{\"a\": 1}", ""},
        {"<html><body>Welcome</html>", ""},
        {HEAD "<ListBucketResult>", ""},
        {LIST("") "<x/>", ""},
        {LIST("<Key>\x01</Key>"), ""},
        {LIST("<Key>\xff</Key>"), ""},
        {LIST("&nbsp;"), ""},
        {"<?xml version=\"1.0\" encoding=\"UTF-16\"?><ListBucketResult>\x01</ListBucketResult>", ""},
        {"<html/>", "another document"},
        {"<Error><Code>x</Code></Error>", "another document"},
        {"<x>" OBJECT("k", "e", "1") "</x>", "another document"},
        {"<!DOCTYPE x><ListBucketResult/>", "DOCTYPE"},
        {"<!DOCTYPE x [<!ENTITY a \"aaaa\"><!ENTITY b "
         "\"&a;&a;&a;\">]><ListBucketResult>&b;</ListBucketResult>",
         "DOCTYPE"},
        {"<!DOCTYPE x [<!ENTITY a SYSTEM \"file:///etc/passwd\">]><ListBucketResult><Contents><Key>&a;</Key>"
         "</Contents></ListBucketResult>",
         "DOCTYPE"},
        {"<!DOCTYPE x SYSTEM \"http://127.0.0.1/x.dtd\"><ListBucketResult/>", "DOCTYPE"},
        {LIST("<a><a><a><a><a><a><a><a></a></a></a></a></a></a></a></a>"), "nested deeper"},
        {LIST("<a><a><a><a><a><a><a><a/></a></a></a></a></a></a></a>"), "nested deeper"},
        {LIST(OBJECT("k", "e", "")), "number"},
        {LIST(OBJECT("k", "e", "-1")), "number"},
        {LIST(OBJECT("k", "e", " 1")), "number"},
        {LIST(OBJECT("k", "e", " -18446744073709551615")), "number"},
        {LIST(OBJECT("k", "e", "+1")), "number"},
        {LIST(OBJECT("k", "e", "1 ")), "number"},
        {LIST(OBJECT("k", "e", "1e3")), "number"},
        {LIST(OBJECT("k", "e", "0x10")), "number"},
        {LIST(OBJECT("k", "e", "1125899906842625")), "number"},
        {LIST(OBJECT("k", "e", "99999999999999999999999")), "number"},
        {LIST(OBJECT("k", "a b", "1")), "ETag is invalid"},
        {LIST(OBJECT("k", "a\nX-Other: b", "1")), "ETag is invalid"},
        {LIST(OBJECT("k", "a&#13;&#10;b", "1")), "ETag is invalid"},
        {LIST(OBJECT("k", TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN, "1")), "ETag is too long"},
        {LIST("<Contents/>"), "no key"},
        {LIST(OBJECT("", "e", "1")), "no key"},
        {LIST(OBJECT("k", "", "1")), "no key"},
        {LIST("<Contents><Key>k</Key><ETag>e</ETag></Contents>"), "no key"},
        {LIST(OBJECT("k", "e", "1") "<Contents><Key>k</Key><ETag>e</ETag></Contents>"), "no key"},
        {LIST("<IsTruncated>true</IsTruncated>"), "next page"},
        {LIST("<IsTruncated>true</IsTruncated><NextContinuationToken/>"), "next page"},
        {LIST("<EncodingType>url</EncodingType>" OBJECT("a%", "e", "1")), "key is not encoded"},
        {LIST("<EncodingType>url</EncodingType>" OBJECT("a%00b", "e", "1")), "key is not encoded"},
        {LIST(OBJECT("a%zz", "e", "1") "<EncodingType>url</EncodingType>"), "key is not encoded"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        expect_refused(bad[i][0], bad[i][1]);
    assert_int_equal(add(ENI_OSS, LIST("<EncodingType>url</EncodingType><IsTruncated>true</IsTruncated>"
                                       "<NextContinuationToken>a%</NextContinuationToken>")),
                     EN_EFORMAT);
    assert_non_null(strstr(why, "token"));
}

static void a_page_that_is_cut_anywhere(void **state)
{
    (void)state;
    static const char whole[] =
        LIST("<EncodingType>url</EncodingType>" OBJECT("a%20b", "&quot;e&quot;", "12"));
    for (size_t n = 0; n < sizeof whole - 1; n++) {
        char *cut = malloc(n + 1); /* exactly so long */
        assert_non_null(cut);
        memcpy(cut, whole, n);
        assert_int_equal(eni_listing_add(&listing, ENI_S3, "", n == 0 ? NULL : cut, n, why, sizeof why),
                         EN_EFORMAT);
        eni_listing_fini(&listing);
        free(cut);
    }
}

static void texts_that_are_too_long(void **state)
{
    (void)state;
    enum { MUCH = 1 << 20 };
    static char xml[MUCH + 200];
    static const char *const parts[][2] = {
        {"<Contents><Key>", "longer text"},
        {"<Name>", "longer text"},
        {"", "longer text"},
        {"<Contents><Key><!-- x --><![CDATA[", "longer text"},
    };
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        const int n = snprintf(xml, sizeof xml, "<ListBucketResult>%s", parts[i][0]);
        memset(xml + n, 'x', MUCH);
        strcpy(xml + n + MUCH, "</ListBucketResult>");
        expect_refused(xml, parts[i][1]);
    }
    snprintf(xml, sizeof xml, "<ListBucketResult><NextContinuationToken>%01100d</NextContinuationToken>", 0);
    expect_refused(xml, "token");
}

static void hundred_thousand_objects_and_one_more(void **state)
{
    (void)state;
    enum { PAGE = 1000 };
    static const char one[] = OBJECT("k", "e", "1");
    const size_t length = strlen(one);
    char *xml = malloc(PAGE * length + 100), *at = xml + sprintf(xml, "<ListBucketResult>");
    assert_non_null(xml);
    for (int i = 0; i < PAGE; i++, at += length)
        memcpy(at, one, length);
    strcpy(at, "</ListBucketResult>");
    for (int page = 0; page < ENI_LISTING_OBJECTS / PAGE; page++)
        assert_int_equal(add(ENI_S3, xml), EN_OK);
    assert_int_equal(listing.n, ENI_LISTING_OBJECTS);
    assert_int_equal(add(ENI_S3, LIST("")), EN_OK);
    assert_int_equal(add(ENI_S3, LIST(OBJECT("k", "e", "1"))), EN_EFORMAT);
    assert_non_null(strstr(why, "100,000"));
    free(xml);
}

/* ---- errors ---- */

static void errors_are_read(void **state)
{
    (void)state;
    static const struct {
        const char *xml, *code, *message, *region;
    } errors[] = {
        {HEAD "<Error><Code>NoSuchBucket</Code><Message>The specified bucket does not exist</Message>"
              "<BucketName>b</BucketName><RequestId>1</RequestId><HostId>h</HostId></Error>",
         "NoSuchBucket", "The specified bucket does not exist", ""},
        {HEAD
         "<Error><Code>AuthorizationHeaderMalformed</Code><Message>the region 'us-east-1' is wrong</Message>"
         "<Region>eu-west-1</Region></Error>",
         "AuthorizationHeaderMalformed", "the region 'us-east-1' is wrong", "eu-west-1"},
        {HEAD "<Error>\n  <Code>AccessDenied</Code>\n  <Message>\xe6\x97\xa0 &lt;k&gt;</Message>\n  "
              "<EC>0003-1</EC>\n"
              "  <Inner><Code>no</Code></Inner>\n</Error>",
         "AccessDenied", "\xe6\x97\xa0 <k>", ""},
        /* control sequences, and text that looks like another line of a log */
        {"<Error><Code>a&#27;[2J</Code><Message>m</Message></Error>", "", "",
         ""}, /* XML has no such character */
        {"<Error><Code>&#155;2J</Code><Message>a&#10;12:00:00.000 E "
         "ok</Message><Region>a&#9;b</Region></Error>",
         "(not text)", "(not text)", "(not text)"},
        {"<Error><Code>ok</Code><Message>a&#13;b</Message><Region>a&#127;</Region></Error>", "ok",
         "(not text)", "(not text)"},
        {"<Error/>", "", "", ""},
        {"<Other><Code>no</Code></Other>", "", "", ""},
        {"<Error><Code>no</Code>", "", "", ""},
        {"<!DOCTYPE x><Error><Code>no</Code></Error>", "", "", ""},
        {"<html><body>404</body></html>", "", "", ""},
        {"Service Unavailable", "", "", ""},
        {"", "", "", ""},
    };
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++) {
        eni_service_error error;
        memset(&error, 'x', sizeof error);
        eni_service_error_read(errors[i].xml, strlen(errors[i].xml), &error);
        assert_string_equal(error.code, errors[i].code);
        assert_string_equal(error.message, errors[i].message);
        assert_string_equal(error.region, errors[i].region);
        assert_true(eni_is_text(error.code) && eni_is_text(error.message) && eni_is_text(error.region));
    }
}

static void long_errors_are_cut(void **state)
{
    (void)state;
    char xml[2000] = "<Error><Code>", *at = xml + strlen(xml);
    eni_service_error error;
    memset(at, 'c', 300);
    strcpy(at + 300, "</Code><Message>a");
    at += strlen(at);
    for (int i = 0; i < 300; i++, at += 3)
        memcpy(at, "\xe6\x97\xa0", 3);
    strcpy(at, "</Message></Error>");
    eni_service_error_read(xml, strlen(xml), &error);
    assert_int_equal(strlen(error.code), sizeof error.code - 1);
    assert_true(eni_is_text(error.message));
    assert_in_range(strlen(error.message), sizeof error.message - 4, sizeof error.message - 1);
}

/* ---- uploads in parts ---- */

/* From "CreateMultipartUpload", Amazon S3 API Reference, and "InitiateMultipartUpload", OSS. */
static void an_upload_that_begins(void **state)
{
    (void)state;
    char id[ENI_UPLOAD_ID], xml[2000];
    static const char s3[] =
        HEAD "<InitiateMultipartUploadResult><Bucket>b</Bucket><Key>k</Key>"
             "<UploadId>VXBsb2FkIElE+/=&amp;.IG</UploadId></InitiateMultipartUploadResult>";
    static const char oss[] =
        HEAD "<InitiateMultipartUploadResult xmlns=\"http://doc.oss-cn-hangzhou.aliyuncs.com\">\n"
             "  <Bucket>b</Bucket>\n  <UploadId>0004B9894A22E5B1888A1E29F8236E2D</UploadId>\n"
             "</InitiateMultipartUploadResult>";
    static const char *const bad[] = {
        "",
        "<InitiateMultipartUploadResult/>",
        "<InitiateMultipartUploadResult><UploadId/></InitiateMultipartUploadResult>",
        "<InitiateMultipartUploadResult><UploadId>a&#10;b</UploadId></InitiateMultipartUploadResult>",
        "<InitiateMultipartUploadResult><X><UploadId>a</UploadId></X></InitiateMultipartUploadResult>",
        "<InitiateMultipartUploadResult><UploadId>a</UploadId>",
        "<Error><UploadId>a</UploadId></Error>",
    };
    assert_true(eni_upload_begun_read(s3, sizeof s3 - 1, id));
    assert_string_equal(id, "VXBsb2FkIElE+/=&.IG");
    assert_true(eni_upload_begun_read(oss, sizeof oss - 1, id));
    assert_string_equal(id, "0004B9894A22E5B1888A1E29F8236E2D");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (eni_upload_begun_read(bad[i], strlen(bad[i]), id)) fail_msg("%s is taken", bad[i]);
        assert_string_equal(id, "");
    }
    for (int length = ENI_UPLOAD_ID - 1; length <= ENI_UPLOAD_ID; length++) {
        snprintf(xml, sizeof xml,
                 "<InitiateMultipartUploadResult><UploadId>%0*d</UploadId></InitiateMultipartUploadResult>",
                 length, 0);
        assert_int_equal(eni_upload_begun_read(xml, strlen(xml), id), length < ENI_UPLOAD_ID);
        assert_int_equal(strlen(id), length < ENI_UPLOAD_ID ? length : 0);
    }
}

/* A slow service sends blanks, before all of it or after the first line; and an error may follow. */
static void an_upload_that_is_over(void **state)
{
    (void)state;
    static const char *const good[] = {
        HEAD "<CompleteMultipartUploadResult><Location>l</Location><ETag>\"e-2\"</ETag>"
             "</CompleteMultipartUploadResult>",
        " \n \r\n\t" HEAD "<CompleteMultipartUploadResult/>",
        HEAD "   \n  <CompleteMultipartUploadResult/>\n",
    };
    static const char late[] = "   " HEAD " <Error><Code>InternalError</Code><Message>m</Message></Error>";
    static const char *const bad[] = {"", "   ", HEAD, late, "<CompleteMultipartUploadResult>", "<html/>"};
    eni_service_error error;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        if (!eni_upload_over_read(good[i], strlen(good[i]))) fail_msg("%s is refused", good[i]);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (eni_upload_over_read(bad[i], strlen(bad[i]))) fail_msg("%s is taken", bad[i]);
    assert_false(eni_upload_over_read(NULL, 0));
    eni_service_error_read(late, sizeof late - 1, &error);
    assert_string_equal(error.code, "InternalError");
}

/* From a proxy rather than a service: an empty error. */
static void an_error_of_no_bytes(void **state)
{
    (void)state;
    eni_service_error error;
    eni_service_error_read(NULL, 0, &error);
    assert_string_equal(error.code, "");
}

#define A_TEST(function) cmocka_unit_test_teardown(function, drop_listing)

int main(void)
{
    const struct CMUnitTest tests[] = {A_TEST(pages_of_s3),
                                       A_TEST(pages_of_oss),
                                       A_TEST(nothing_is_lost_between_pieces),
                                       A_TEST(one_etag_in_many_forms),
                                       A_TEST(a_key_without_the_prefix),
                                       A_TEST(a_key_of_1024_bytes_and_of_one_more),
                                       A_TEST(a_long_key_that_is_encoded),
                                       A_TEST(bad_pages),
                                       A_TEST(a_page_that_is_cut_anywhere),
                                       A_TEST(texts_that_are_too_long),
                                       A_TEST(hundred_thousand_objects_and_one_more),
                                       A_TEST(errors_are_read),
                                       A_TEST(long_errors_are_cut),
                                       A_TEST(an_error_of_no_bytes),
                                       A_TEST(an_upload_that_begins),
                                       A_TEST(an_upload_that_is_over)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
