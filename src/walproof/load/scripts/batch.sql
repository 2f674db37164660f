\set value random(1, 1000000000)
INSERT INTO walproof.inserted (client, value, filler) SELECT :client_id, :value + n, repeat('x', 84) FROM generate_series(1, :rows) AS n;
