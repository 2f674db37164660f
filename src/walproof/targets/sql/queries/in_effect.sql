-- Whether the server has read its files since, and nothing keeps these names from being as postgresql.auto.conf says.
SELECT pg_conf_load_time() >= %(asked)s
   AND NOT EXISTS (SELECT FROM pg_catalog.pg_settings
                    WHERE name = ANY(%(names)s::text[]) AND (pending_restart OR source = 'command line'))
   AND NOT EXISTS (SELECT FROM pg_catalog.pg_file_settings f
                    WHERE f.name = ANY(%(names)s::text[]) AND f.error IS NOT NULL) AS in_effect
