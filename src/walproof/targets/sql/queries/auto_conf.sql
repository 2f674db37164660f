-- postgresql.auto.conf in its own order; a name set twice counts where it stands last.
SELECT name, setting AS value
FROM (SELECT DISTINCT ON (name) name, setting, seqno
        FROM pg_catalog.pg_file_settings
       WHERE sourcefile = current_setting('data_directory') || '/postgresql.auto.conf' AND name IS NOT NULL
       ORDER BY name, seqno DESC) AS last
ORDER BY seqno
