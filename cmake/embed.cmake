# embed.cmake: writes OUT, a C file with the text IN as the array NAME; see en_embed in Entrain.cmake.
file(READ ${IN} bytes HEX)
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "'\\\\x\\1'," bytes "${bytes}")
file(WRITE ${OUT} "extern const char ${NAME}[];\nconst char ${NAME}[] = {${bytes}0};\n")
