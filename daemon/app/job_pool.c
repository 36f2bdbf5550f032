/* Records of jobs, used again and again, and how a client's are found by their request's id: neither takes memory from
 * the heap while as many jobs are in flight as before. */
#include <stdlib.h>
#include <string.h>

#include "daemon/app/state.h"

#define KEPT_MAX 4096u /* records without a job */

struct app_job *job_new(struct app *app)
{
    if (list_empty(&app->free_jobs))
        return calloc(1, sizeof(struct app_job));
    struct app_job *job = list_entry(app->free_jobs.next, struct app_job, in_bucket);
    list_del(&job->in_bucket);
    app->n_free_jobs--;
    memset(job, 0, sizeof(*job));
    return job;
}

void job_free(struct app *app, struct app_job *job)
{
    if (job == NULL)
        return;
    if (app->n_free_jobs == KEPT_MAX) {
        free(job);
        return;
    }
    list_push_front(&app->free_jobs, &job->in_bucket); /* the warmest one is used next */
    app->n_free_jobs++;
}

void job_pool_free(struct app *app)
{
    list_for_each_safe (node, &app->free_jobs)
        free(list_entry(node, struct app_job, in_bucket));
    list_init(&app->free_jobs);
    app->n_free_jobs = 0;
}

/* Ids count up in the client library, so they spread evenly. */
static struct list *bucket_of(struct app_client *client, uint64_t request_id)
{
    return &client->jobs[request_id % APP_JOB_BUCKETS];
}

void job_index_init(struct app_client *client)
{
    for (unsigned i = 0; i < APP_JOB_BUCKETS; i++)
        list_init(&client->jobs[i]);
}

struct app_job *job_find(struct app_client *client, uint64_t request_id)
{
    list_for_each (node, bucket_of(client, request_id)) {
        struct app_job *job = list_entry(node, struct app_job, in_bucket);
        if (job->request_id == request_id)
            return job;
    }
    return NULL;
}

void job_index(struct app_job *job)
{
    list_push_back(bucket_of(job->client, job->request_id), &job->in_bucket);
    job->indexed = true;
}

void job_unindex(struct app_job *job)
{
    if (job->indexed)
        list_del(&job->in_bucket);
    job->indexed = false;
}
