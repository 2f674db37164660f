-- Whose a table of walproof's is, who could make it run their code, and who gets its rows. Rows as tuples; NULL: nothing is
-- wrong.

-- name: schema
-- No row where there is no schema walproof; else what is wrong with it.
SELECT CASE
    WHEN n.nspowner <> me.oid THEN pg_catalog.concat('its owner is ', pg_catalog.pg_get_userbyid(n.nspowner))
    WHEN EXISTS (SELECT FROM pg_catalog.aclexplode(n.nspacl) a
                  WHERE a.grantee <> n.nspowner AND a.privilege_type = 'CREATE') THEN 'other roles may create in it'
    END
  FROM pg_catalog.pg_namespace n, pg_catalog.pg_roles me
 WHERE n.nspname = 'walproof' AND me.rolname = current_user

-- name: table
-- No row where there is no such table; else its oid, what is wrong with it, and its comment.
SELECT c.oid::bigint, CASE
    WHEN c.relowner <> me.oid THEN pg_catalog.concat('its owner is ', pg_catalog.pg_get_userbyid(c.relowner))
    WHEN c.relkind <> 'r' OR c.relispartition THEN 'it is no plain table'
    WHEN EXISTS (SELECT FROM pg_catalog.pg_inherits i WHERE c.oid IN (i.inhparent, i.inhrelid))
        THEN 'it inherits, or is inherited from'
    WHEN EXISTS (SELECT FROM pg_catalog.pg_trigger t WHERE t.tgrelid = c.oid) THEN 'it has a trigger'
    WHEN EXISTS (SELECT FROM pg_catalog.pg_rewrite r WHERE r.ev_class = c.oid) THEN 'it has a rule'
    WHEN c.relrowsecurity OR EXISTS (SELECT FROM pg_catalog.pg_policy p WHERE p.polrelid = c.oid)
        THEN 'it has row security'
    WHEN EXISTS (SELECT FROM pg_catalog.aclexplode(c.relacl) a
                  WHERE a.grantee <> c.relowner AND a.privilege_type IN ('TRIGGER', 'REFERENCES'))
      OR EXISTS (SELECT FROM pg_catalog.pg_attribute a, pg_catalog.aclexplode(a.attacl) g
                  WHERE a.attrelid = c.oid AND g.grantee <> c.relowner AND g.privilege_type = 'REFERENCES')
        THEN 'other roles may give it a trigger or a foreign key'
    WHEN EXISTS (
        -- What is not PostgreSQL's own (16384: FirstNormalObjectId) in types, defaults, checks and indexes of it.
        SELECT FROM pg_catalog.pg_depend d
         WHERE d.refobjid >= 16384::pg_catalog.oid
           AND d.refclassid IN ('pg_catalog.pg_proc'::pg_catalog.regclass, 'pg_catalog.pg_type'::pg_catalog.regclass,
                                'pg_catalog.pg_operator'::pg_catalog.regclass,
                                'pg_catalog.pg_opclass'::pg_catalog.regclass)
           AND ((d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass
                 AND (d.objid = c.oid OR d.objid IN (SELECT indexrelid FROM pg_catalog.pg_index WHERE indrelid = c.oid)))
             OR (d.classid = 'pg_catalog.pg_attrdef'::pg_catalog.regclass
                 AND d.objid IN (SELECT oid FROM pg_catalog.pg_attrdef WHERE adrelid = c.oid))
             OR (d.classid = 'pg_catalog.pg_constraint'::pg_catalog.regclass
                 AND d.objid IN (SELECT oid FROM pg_catalog.pg_constraint WHERE conrelid = c.oid))))
        THEN 'functions or types of users are in its columns, checks or indexes'
    ELSE (
        -- Those that have no such table would apply nothing any more, and their slots would keep WAL until the disk is full.
        SELECT pg_catalog.concat('publication ', pg_catalog.min(p.pubname::text), ' sends it to subscribers')
          FROM pg_catalog.pg_publication p, LATERAL pg_catalog.pg_get_publication_tables(p.pubname) t
         WHERE t.relid = c.oid HAVING pg_catalog.count(*) > 0)
    END, coalesce(pg_catalog.obj_description(c.oid, 'pg_class'), '')
  FROM pg_catalog.pg_class c, pg_catalog.pg_roles me
 WHERE c.oid = pg_catalog.to_regclass(%(table)s)::pg_catalog.oid AND me.rolname = current_user

-- name: grantees_of_schema
-- Others who may create in it; NULL: PUBLIC.
SELECT DISTINCT r.rolname::text
  FROM pg_catalog.pg_namespace n, pg_catalog.aclexplode(n.nspacl) a
  LEFT JOIN pg_catalog.pg_roles r ON r.oid = a.grantee
 WHERE n.nspname = 'walproof' AND a.grantee <> n.nspowner AND a.privilege_type = 'CREATE'

-- name: grantees_of_table
-- Others who have a right on it; NULL: PUBLIC.
SELECT DISTINCT r.rolname::text
  FROM pg_catalog.pg_class c, pg_catalog.aclexplode(c.relacl) a
  LEFT JOIN pg_catalog.pg_roles r ON r.oid = a.grantee
 WHERE c.oid = pg_catalog.to_regclass(%(table)s)::pg_catalog.oid AND a.grantee <> c.relowner

-- name: sharer
-- Who may become the role that owns what is made here, and not the one that logged in, with whose rights code in it would
-- run: a trigger may say SET ROLE NONE. No row where both are one role. Before 16 who can be a role with CREATEROLE gives
-- himself any role that is no superuser, the one that logged in as well.
SELECT r.rolname::text, current_user::text, session_user::text
  FROM pg_catalog.pg_roles r
 WHERE r.rolcanlogin AND (pg_catalog.pg_has_role(r.oid, current_user, 'MEMBER')
     OR pg_catalog.current_setting('server_version_num')::int OPERATOR(pg_catalog.<) 160000
       AND EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname OPERATOR(pg_catalog.=) session_user AND rolsuper)
       AND EXISTS (SELECT FROM pg_catalog.pg_roles o WHERE o.rolname OPERATOR(pg_catalog.=) current_user AND NOT o.rolsuper)
       AND EXISTS (SELECT FROM pg_catalog.pg_roles c WHERE c.rolcreaterole AND pg_catalog.pg_has_role(r.oid, c.oid, 'MEMBER')))
   AND NOT pg_catalog.pg_has_role(r.oid, session_user, 'MEMBER')
 ORDER BY 1 LIMIT 1
