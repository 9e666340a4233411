-- Deletes acknowledged messages, and claims ready ones for a consumer, in one statement for all queues of a connection.
-- The subquery on the consumer runs only if there is a candidate: an idle poll writes nothing. Its lock excludes that the
-- consumer is declared dead meanwhile. A message that is locked by another claim is skipped.
WITH acknowledged AS (
    DELETE FROM durable_tasks_transport_message
    WHERE id = ANY(%(acknowledged)s::bigint[]) AND consumer = %(consumer)s::bigint
), wanted AS (
    SELECT * FROM unnest(%(queues)s::bigint[], %(channels)s::int[], %(limits)s::int[])
    AS wanted (queue, channel, most)
), candidates AS MATERIALIZED (
    SELECT ready.id, ready.rank, wanted.channel, wanted.most
    FROM wanted CROSS JOIN LATERAL (
        SELECT id, rank FROM durable_tasks_transport_message AS message
        WHERE message.queue = wanted.queue AND message.consumer IS NULL
            AND (message.expires_at IS NULL OR message.expires_at > statement_timestamp())
        ORDER BY message.rank, message.id LIMIT wanted.most FOR UPDATE SKIP LOCKED
    ) AS ready
), chosen AS (
    SELECT DISTINCT ON (id) id, channel FROM (
        SELECT id, channel, most, row_number() OVER (PARTITION BY channel ORDER BY rank, id) AS place
        FROM candidates
    ) AS placed
    WHERE place <= most
    ORDER BY id, channel
)
UPDATE durable_tasks_transport_message AS message
SET consumer = %(consumer)s::bigint, deliveries = message.deliveries + 1
FROM chosen
WHERE message.id = chosen.id AND (
    SELECT consumer.id FROM durable_tasks_transport_consumer AS consumer
    WHERE consumer.id = %(consumer)s::bigint AND consumer.expires_at > statement_timestamp()
    FOR KEY SHARE
) IS NOT NULL
RETURNING message.id, message.queue, message.rank, message.deliveries, message.body, chosen.channel
