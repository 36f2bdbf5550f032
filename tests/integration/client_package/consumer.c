/* A program outside the tree that uses the installed library; compiled as C and as C++. */
#include <mla/mla.h>

#include <stdio.h>

int main(void)
{
    struct mla_options options;
    struct mla_decode_args args;
    struct mla_memory memory;
    struct mla_client *client = NULL;
    struct mla_error_info error;

    mla_options_init(&options);
    mla_decode_args_init(&args);
    options.socket_path = "/nonexistent/mlad.sock";
    if (mla_open(&options, &client, &error) != MLA_DISCONNECTED || client != NULL)
        return 1;
    if (mla_decode(client, &args, 0, NULL) != MLA_INVALID_ARGUMENT)
        return 2;
    if (mla_memory_create(1, 0, &memory) != MLA_OK || memory.size < 1)
        return 3;
    mla_memory_free(&memory);
    printf("libmla %s: %s: %s\n", mla_version(), mla_errname(error.status), error.text);
    return 0;
}
