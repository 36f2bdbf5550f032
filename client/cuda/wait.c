#include "client/cuda/wait.h"

#include <stdlib.h>
#include <string.h>

/* Ends when the word is value or more, as a signed difference, or most_ns have passed. */
static const char ptx[] = ".version 6.0\n"
                          ".target sm_70\n"
                          ".address_size 64\n"
                          ".visible .entry mla_client_wait(.param .u64 word, .param .u64 value, .param .u64 most_ns)\n"
                          "{\n"
                          "    .reg .u64 %address, %value, %most, %now, %begun, %seen;\n"
                          "    .reg .s64 %distance;\n"
                          "    .reg .pred %come, %late;\n"
                          "    ld.param.u64 %address, [word];\n"
                          "    ld.param.u64 %value, [value];\n"
                          "    ld.param.u64 %most, [most_ns];\n"
                          "    cvta.to.global.u64 %address, %address;\n"
                          "    mov.u64 %begun, %globaltimer;\n"
                          "again:\n"
                          "    ld.acquire.sys.global.u64 %seen, [%address];\n"
                          "    sub.s64 %distance, %seen, %value;\n"
                          "    setp.ge.s64 %come, %distance, 0;\n"
                          "    @%come bra over;\n"
                          "    mov.u64 %now, %globaltimer;\n"
                          "    sub.u64 %now, %now, %begun;\n"
                          "    setp.ge.u64 %late, %now, %most;\n"
                          "    @!%late bra again;\n"
                          "over:\n"
                          "    ret;\n"
                          "}\n";

void mlacu_wait_open(const struct cuda_driver *cu, const struct mla_client *client, struct mlacu_wait *wait)
{
    const char *how = getenv("MLA_CUDA_WAIT");
    const struct mla_server_info *server = mla_server(client);
    *wait = (struct mlacu_wait){.module = NULL};
    if (!how || strcmp(how, "kernel") != 0 || !server || !server->isolation || strcmp(server->isolation, "shared") != 0)
        return;
    if (cu->cuModuleLoadData(&wait->module, ptx) != CUDA_SUCCESS) {
        wait->module = NULL;
    } else if (cu->cuModuleGetFunction(&wait->function, wait->module, "mla_client_wait") != CUDA_SUCCESS) {
        cu->cuModuleUnload(wait->module);
        wait->module = NULL;
    }
}

CUresult mlacu_wait_close(const struct cuda_driver *cu, struct mlacu_wait *wait)
{
    CUresult r = wait->module ? cu->cuModuleUnload(wait->module) : CUDA_SUCCESS;
    if (r == CUDA_SUCCESS)
        wait->module = NULL;
    return r;
}

CUresult mlacu_wait_put(const struct cuda_driver *cu, const struct mlacu_wait *wait, uint64_t word, uint64_t value,
                        CUstream stream)
{
    uint64_t most_ns = MLACU_WAIT_NS;
    void *parameters[] = {&word, &value, &most_ns};
    CUlaunchConfig config = {
        .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1, .blockDimY = 1, .blockDimZ = 1, .hStream = stream};
    return wait->module ? cu->cuLaunchKernelEx(&config, wait->function, parameters, NULL) : CUDA_SUCCESS;
}
