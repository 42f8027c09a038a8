package io.kubesvc.clouddriver;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.netflix.spinnaker.clouddriver.security.AccountDefinitionMapper;
import com.netflix.spinnaker.clouddriver.security.AccountDefinitionRepository;
import com.netflix.spinnaker.clouddriver.security.AccountDefinitionTypes;
import com.netflix.spinnaker.credentials.definition.CredentialsDefinition;
import com.netflix.spinnaker.kork.web.exceptions.InvalidRequestException;
import com.netflix.spinnaker.kork.web.exceptions.NotFoundException;
import com.netflix.spinnaker.security.AuthenticatedRequest;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.util.List;
import java.util.Objects;
import java.util.stream.Collectors;
import javax.sql.DataSource;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import org.springframework.dao.DataAccessException;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.jdbc.datasource.DataSourceTransactionManager;
import org.springframework.jdbc.support.SQLExceptionSubclassTranslator;
import org.springframework.transaction.support.TransactionTemplate;

/** The tables {@code accounts} and {@code accounts_history} in MariaDB and PostgreSQL, created unless they are there. */
class AccountTable implements AccountDefinitionRepository {
  private static final Logger LOG = LoggerFactory.getLogger(AccountTable.class);

  private final JdbcTemplate sql;
  private final TransactionTemplate transaction;
  private final AccountDefinitionMapper mapper;
  private final boolean postgres;

  AccountTable(DataSource database, boolean postgres, AccountDefinitionMapper mapper) {
    this.sql = new JdbcTemplate(database);
    // Answers name the task and the statement as jOOQ's listener does in Clouddriver.
    var translator = new SQLExceptionSubclassTranslator();
    sql.setExceptionTranslator(
        (task, statement, cause) -> translator.translate("jOOQ", statement == null ? "" : statement, cause));
    this.transaction = new TransactionTemplate(new DataSourceTransactionManager(database));
    this.mapper = mapper;
    this.postgres = postgres;
    createTables();
  }

  private void createTables() {
    var history = postgres ? "primary key (id, version)" : "primary key (id, version desc)";
    var suffix = postgres ? "" : " character set utf8mb4 collate utf8mb4_unicode_ci";
    sql.execute(
        "create table if not exists accounts (id varchar(255) not null primary key, type varchar(50) not null, "
            + "body json not null, created_at bigint not null, last_modified_at bigint not null, "
            + "last_modified_by varchar(255) not null"
            + (postgres ? ")" : ", index accounts_type_index (type))" + suffix));
    if (postgres) {
      sql.execute("create index if not exists accounts_type_index on accounts (type)");
    }
    sql.execute(
        "create table if not exists accounts_history (id varchar(255) not null, version int not null, "
            + "type varchar(50), body json, last_modified_at bigint not null, is_deleted boolean not null default false, "
            + history
            + ")"
            + suffix);
  }

  @Override
  public CredentialsDefinition getByName(String name) {
    var found = sql.query("select id, body from accounts where id = ?", this::definition, name);
    return found.isEmpty() ? null : found.get(0);
  }

  @Override
  public List<? extends CredentialsDefinition> listByType(String type, int limit, String startingName) {
    var from = startingName == null ? "" : startingName;
    return present(
        sql.query(
            "select id, body from accounts where type = ? and id >= ? order by id limit ?",
            this::definition,
            type,
            from,
            limit));
  }

  @Override
  public List<? extends CredentialsDefinition> listByType(String type) {
    return present(sql.query("select id, body from accounts where type = ?", this::definition, type));
  }

  @Override
  public void create(CredentialsDefinition definition) {
    var body = body(definition);
    var now = System.currentTimeMillis();
    inTransaction(
        () -> {
          insert(definition, body, now, "");
          remember(definition, body, now);
        });
  }

  @Override
  public void save(CredentialsDefinition definition) {
    var body = body(definition);
    var now = System.currentTimeMillis();
    inTransaction(
        () -> {
          var changed = "type = %1$s(type), body = %1$s(body), last_modified_at = %1$s(last_modified_at), "
              + "last_modified_by = %1$s(last_modified_by)";
          insert(
              definition,
              body,
              now,
              postgres
                  ? " on conflict (id) do update set " + changed.replaceAll("%1\\$s\\((\\w+)\\)", "excluded.$1")
                  : " on duplicate key update " + String.format(changed, "values"));
          remember(definition, body, now);
        });
  }

  @Override
  public void update(CredentialsDefinition definition) {
    var body = body(definition);
    var now = System.currentTimeMillis();
    inTransaction(
        () -> {
          var rows =
              sql.update(
                  "update accounts set type = ?, body = " + json() + ", last_modified_at = ?, last_modified_by = ?"
                      + " where id = ?" + comment(),
                  type(definition), body, now, user(), definition.getName());
          mustExist(rows, definition.getName());
          remember(definition, body, now);
        });
  }

  @Override
  public void delete(String name) {
    inTransaction(
        () -> {
          mustExist(sql.update("delete from accounts where id = ?" + comment(), name), name);
          sql.update(
              "insert into accounts_history (id, version, last_modified_at, is_deleted) values (?, ?, ?, true)",
              name, nextVersion(name), System.currentTimeMillis());
        });
  }

  @Override
  public List<Revision> revisionHistory(String name) {
    return sql.query(
        "select id, version, body, last_modified_at from accounts_history where id = ? order by version desc",
        (row, number) ->
            new Revision(
                row.getInt("version"),
                row.getLong("last_modified_at"),
                row.getString("body") == null ? null : definition(row, number)),
        name);
  }

  private void insert(CredentialsDefinition definition, String body, long now, String orUpdate) {
    sql.update(
        "insert into accounts (id, type, body, created_at, last_modified_at, last_modified_by) values (?, ?, "
            + json() + ", ?, ?, ?)" + orUpdate + comment(),
        definition.getName(), type(definition), body, now, now, user());
  }

  private void remember(CredentialsDefinition definition, String body, long now) {
    sql.update(
        "insert into accounts_history (id, version, type, body, last_modified_at) values (?, ?, ?, " + json() + ", ?)",
        definition.getName(), nextVersion(definition.getName()), type(definition), body, now);
  }

  private int nextVersion(String name) {
    return 1 + sql.queryForObject("select count(*) from accounts_history where id = ?", Integer.class, name);
  }

  private void inTransaction(Runnable work) {
    transaction.executeWithoutResult(status -> work.run());
  }

  /** A row that cannot be read, be it of its JSON or of its secrets, is left out. */
  private CredentialsDefinition definition(ResultSet row, int number) throws SQLException {
    try {
      return mapper.deserialize(row.getString("body"));
    } catch (JsonProcessingException | RuntimeException problem) {
      LOG.warn("account {} is skipped: {}", row.getString("id"), problem.toString());
      return null;
    }
  }

  private String body(CredentialsDefinition definition) {
    try {
      return mapper.serialize(definition);
    } catch (JsonProcessingException problem) {
      throw new InvalidRequestException("cannot serialize as JSON", problem);
    }
  }

  private static String type(CredentialsDefinition definition) {
    return AccountDefinitionTypes.getCredentialsTypeName(definition.getClass());
  }

  private String json() {
    return postgres ? "cast(? as json)" : "?";
  }

  private static String user() {
    return AuthenticatedRequest.getSpinnakerUser().orElse("anonymous");
  }

  /** Clouddriver's statements say who caused them. */
  private static String comment() {
    return " -- user: " + AuthenticatedRequest.getSpinnakerUser().orElse("anonymous").replaceAll("[\\r\\n]", " ");
  }

  private static void mustExist(int rows, String name) {
    if (rows == 0) {
      throw new NotFoundException("No account found with name " + name);
    }
  }

  private static <T> List<T> present(List<T> rows) {
    return rows.stream().filter(Objects::nonNull).collect(Collectors.toList());
  }
}
